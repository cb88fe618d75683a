"""What a class of methods can reach at best, and the coordinates in which it is found."""
