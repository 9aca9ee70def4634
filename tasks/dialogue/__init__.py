"""Conversations with a scripted or a played user."""
