"""The command line: what people type. Built on the client alone, but for ``serve`` (processes) and ``log`` (files)."""
