"""Sources: the only code of xloader that opens or reads a store."""
