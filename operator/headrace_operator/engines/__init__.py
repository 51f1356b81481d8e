"""The kinds of engine, behind one protocol."""
