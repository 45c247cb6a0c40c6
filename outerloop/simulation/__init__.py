"""Simulate N workers in one process on one device, for any model, data and loss."""
