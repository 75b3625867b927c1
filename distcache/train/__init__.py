"""What training needs: datasets over a cache, samplers; the only importer of torch."""
