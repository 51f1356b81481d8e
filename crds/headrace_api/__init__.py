"""The custom resources as pydantic models, their names, and the CRDs generated from them."""
