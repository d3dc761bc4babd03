"""Stored runs side by side: what pages and plots show, read from stores without torch."""
