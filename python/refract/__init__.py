"""Exports PyTorch models for Refract and asks Refract's CPU nodes."""

__version__ = "0.1.0"
__all__ = ["Answer", "Client", "export"]


def __getattr__(name):
    # On first use: `export` needs PyTorch, `Client` needs tritonclient.
    if name == "export":
        from refract.exporter import export

        return export
    if name in ("Answer", "Client"):
        from refract import client

        return getattr(client, name)
    raise AttributeError(f"module 'refract' has no attribute {name!r}")
