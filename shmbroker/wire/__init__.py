"""The Iggy binary protocol (0.11) as a codec without I/O, for both ends, and our own commands beside it.

``frame``: the 256-byte headers. ``primitives``: what bodies are made of. One module for each noun of the protocol:
``system``, ``users``, ``streams``, ``topics``, ``messages``, ``offsets``, ``groups``, ``local``. ``commands``: the table
of all of them. ``connection``: bytes in, requests or replies out.
"""
