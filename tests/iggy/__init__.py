"""The published Iggy client, unmodified, against a real broker."""
