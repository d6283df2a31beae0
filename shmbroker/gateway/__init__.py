"""The HTTP gateway: an ordinary local client of the broker that speaks JSON. Needs the ``http`` extra."""
