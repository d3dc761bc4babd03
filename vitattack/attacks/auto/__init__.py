"""`auto`: AutoAttack verdicts at a fraction of its passes."""
