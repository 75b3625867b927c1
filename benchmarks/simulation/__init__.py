"""How localizing and building scale beyond the nodes that there are to measure on."""
