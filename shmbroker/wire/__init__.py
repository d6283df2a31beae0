"""The Iggy binary protocol (0.11) as a codec without I/O, for both ends, and our own commands beside it.

``frame``: the 256-byte headers. ``primitives``, ``bodies``: what bodies are made of. ``codes``: how commands travel.
One module for each noun: ``system``, ``users``, ``streams``, ``topics``, ``messages``, ``offsets``, ``groups``,
``local``. ``commands``: the table of all bodies. ``connection``: bytes in, requests or replies out.
"""
