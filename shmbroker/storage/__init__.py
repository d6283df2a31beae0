"""What a partition keeps on disk and in the runtime directory, and how it comes back after a crash."""
