"""The front: listeners, sessions, the catalog, lanes for local clients, and the workers it starts and watches."""
