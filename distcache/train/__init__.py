"""What training needs: datasets over a cache, samplers, readiness; the only importer of torch."""
