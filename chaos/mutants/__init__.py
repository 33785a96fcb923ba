"""Builds of muster with one safety rule removed: whoever tests must catch each of them."""
