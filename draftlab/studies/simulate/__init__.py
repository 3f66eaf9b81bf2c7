"""What a verification policy would have gained on logged drafts."""
