"""Agentic visual RAG, notebook-first. See README.md."""

__version__ = "0.1.0"
