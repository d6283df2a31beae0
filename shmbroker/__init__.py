"""shmbroker: a message broker for one Linux host whose producers are mostly on that host."""
