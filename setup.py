"""Install resispec_nb; every value comes from settings.ini."""
from configparser import ConfigParser
from pathlib import Path
from setuptools import find_packages, setup

config = ConfigParser(delimiters=["="])
config.read(Path(__file__).parent/"settings.ini", encoding="utf-8")
s = config["DEFAULT"]

setup(
    name=s["lib_name"], version=s["version"], description=s["description"], author=s["author"], license="Apache-2.0",
    url=s["git_url"], keywords=s["keywords"],
    long_description=Path("README.md").read_text(encoding="utf-8"), long_description_content_type="text/markdown",
    packages=find_packages(include=["resispec_nb", "resispec_nb.*"]), package_data={"resispec_nb": ["assets/*"]},
    entry_points={"console_scripts": ["resispec = resispec_nb.cli:main"]},
    python_requires=">=" + s["min_python"], install_requires=s["requirements"].split(),
    extras_require={"dev": s["dev_requirements"].split()}, zip_safe=False,
)
