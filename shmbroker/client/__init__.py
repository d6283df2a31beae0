"""What programs import: producers, consumers and administration over shared memory and the Unix socket."""
