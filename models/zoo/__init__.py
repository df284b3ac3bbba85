"""Recommendation models to serve, measure and test Refract with."""
