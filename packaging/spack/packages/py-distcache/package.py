"""Spack package of distcache."""

from spack.package import *


class PyDistcache(PythonPackage):
    """Build the index caches of Megatron-style training ahead of a job, and stage them on nodes."""

    homepage = "https://distcache.readthedocs.io"
    pypi = "distcache-megatron/distcache_megatron-0.3.0.tar.gz"
    git = "https://github.com/distcache/distcache.git"

    license("Apache-2.0")

    version("main", branch="main")

    variant("mpi", default=True, description="Builds and agents of several ranks")
    variant("train", default=False, description="Datasets for torch")
    variant("slurm", default=True, description="distcache submit --wait")
    variant("ingest", default=False, description="Corpora from text and Parquet")
    variant("mds", default=False, description="Compressed shards of MDS")

    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("ninja", type="build")
    depends_on("py-scikit-build-core@0.10:", type="build")
    depends_on("py-pybind11@3.0:", type="build")
    depends_on("python@3.11:", type=("build", "link", "run"))

    with default_args(type=("build", "run")):
        depends_on("py-numpy@1.26:")
        depends_on("py-h5py@3.11:")
        depends_on("py-msgspec@0.19:")
        depends_on("py-pyyaml@6.0:")
        depends_on("py-xxhash@3.4:")
        depends_on("py-typer@0.19:0.28")
        depends_on("py-rich@13:")
        depends_on("py-mpi4py@4.0:", when="+mpi")
        depends_on("py-torch@2.4:", when="+train")
        depends_on("py-submitit@1.5:", when="+slurm")
        depends_on("py-zstandard@0.22:", when="+mds")
        with when("+ingest"):
            depends_on("py-tokenizers@0.20:")
            depends_on("py-sentencepiece@0.2:")
            depends_on("py-tiktoken@0.7:")
            depends_on("py-pyarrow@17:")
            depends_on("py-huggingface-hub@0.23:")
