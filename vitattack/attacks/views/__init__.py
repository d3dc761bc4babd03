"""Attacks through views made for transfer: changed inputs and changed gradients around any inner attack."""
