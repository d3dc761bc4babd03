"""Progress of long commands on stderr: bars on a terminal, lines elsewhere."""
