"""What a variant and a binding must remember from one tick to the next, kept with the resource."""
