"""push(): upload a model with its card to the Hugging Face hub, for `gpaco.load("hub:OWNER/NAME")`."""

import json
import shutil
from pathlib import Path
from typing import Any

from gpaco import __version__
from gpaco.api.model_folder import CONFIG, is_ours, sha256_of, write_model_folder
from gpaco.errors import EnvironmentProblem, UserError
from gpaco.models.weights.hub import check_name
from gpaco.pages.model_card import write_model_card
from gpaco.system.progress import Say, quiet
from gpaco.system.words import one_line
from gpaco.tasks.classification.calibration import GAUSSIAN
from gpaco.training.run import Run, as_run

FOLDER = "hub"  # in the run: what is uploaded


def push(
    run: Run | Path | str, name: str, *, private: bool = False, dry_run: bool = False, say: Say = quiet
) -> dict[str, Any]:
    """Write the model of a finished run to the folder `hub` inside it, and upload that folder to the hub.

    The folder has weights as safetensors, everything else about the model as JSON, and a model card with a chart. It
    has no images, paths or file names of the data.

    Args:
        name: OWNER/NAME on the hub; created if it does not exist.
        private: make the new repository private.
        dry_run: write the folder without uploading it.

    >>> sorted(push("runs/first", "OWNER/NAME", dry_run=True)["files"])
    ['README.md', 'classes.png', 'config.json', 'model.safetensors']
    """
    run, name = as_run(run), check_name(name)
    run.check_finished()
    folder, partial, old = (run.folder / word for word in (FOLDER, f".{FOLDER}.writing", f".{FOLDER}.replaced"))
    if old.exists() and not folder.exists():  # a push was killed between its two renames
        old.rename(folder)
    if folder.exists() and not is_ours(folder):
        raise UserError(f"{folder} exists and was not written by this command", "remove or rename it")
    for left in (partial, old):
        shutil.rmtree(left, ignore_errors=True)
    partial.mkdir()
    write_model_card(run, name, partial)
    write_model_folder(run, partial)
    if folder.exists():
        _keep_own(folder, partial, say)
        folder.rename(old)
    partial.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
    files = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    address = None
    if not dry_run:
        say(f"uploading to {name}")
        address = upload(folder, name, private)
    return {"folder": str(folder), "files": files, "address": address}


def _keep_own(folder: Path, new: Path, say: Say) -> None:
    """Carry over what a person has added to the folder, and the model card if they have changed it."""
    for path in folder.iterdir():
        if not (new / path.name).exists() and path.name != GAUSSIAN:
            (shutil.copytree if path.is_dir() else shutil.copy2)(path, new / path.name)
    card, written = folder / "README.md", json.loads((folder / CONFIG).read_text(encoding="utf-8")).get("readme")
    if card.is_file() and sha256_of(card) != written:
        shutil.copy2(card, new / "README.md")
        say(f"{card} has your edits and is kept; delete it to get a new one")


def upload(folder: Path, name: str, private: bool) -> str:
    """Upload a folder to the hub, and return its address."""
    from huggingface_hub import HfApi

    try:
        hub = HfApi()
        address = hub.create_repo(name, private=private, exist_ok=True)
        if private and not hub.repo_info(name).private:
            raise UserError(f"{name} already exists and is public", "make it private there, or choose another name")
        hub.upload_folder(repo_id=name, folder_path=folder, commit_message=f"gpaco {__version__}")
    except UserError:
        raise
    except Exception as error:  # network errors differ between versions of the library
        raise EnvironmentProblem(
            f"cannot upload to {name}: {one_line(error)}",
            "check the network, and that you may write there: hf auth login; --dry-run writes the folder only",
        ) from error
    return str(address)
