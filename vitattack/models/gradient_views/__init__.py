"""Views for transfer: the victim with changed inputs or changed gradients, one by one or several at once."""
