"""What a user or a supervisor does: policy and adapters are introduced to each other here."""
