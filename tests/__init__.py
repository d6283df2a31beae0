"""The tests: one package, so that they can share what they build on."""
