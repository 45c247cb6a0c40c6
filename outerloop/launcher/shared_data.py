"""Publish this machine's data to the run, or download the run's corpus, before training starts."""

from __future__ import annotations

from omegaconf import DictConfig, OmegaConf

from outerloop.config.build import shared_corpus
from outerloop.config.instantiate import make
from outerloop.config.options.search_path import config_dir
from outerloop.inner.data.corpus import notes_of
from outerloop.inner.data.publish import Publishable, publish
from outerloop.swarm.corpus.folder import OnStatus
from outerloop.types import UserError


def prepare(config: DictConfig, on_status: OnStatus) -> None:
    """Bring the training data of the run to this machine. `on_status`: called with each line for the user.

    With corpus.share, this machine's data is published, and `config.data` becomes the published corpus. Raises
    UserError if that is not possible, or if the peers of the run do not send the corpus.
    """
    if config.corpus.share is not None:
        share(config, on_status)
    elif shared_corpus(config):
        from outerloop.launcher.corpus_download import download  # imports hivemind, which other runs do not need

        download(config, on_status)


def share(config: DictConfig, on_status: OnStatus) -> None:
    """Publish the data of this machine, and train on the published corpus.

    Raises UserError if this data cannot be published.
    """
    data = config.data
    if data.get("non_iid"):
        raise UserError(
            "data.non_iid=true does not apply to a published corpus, from which all workers draw: set"
            " data.non_iid=false, or leave corpus.share out"
        )
    corpus = None if "sha256" in data else make(data)
    if not isinstance(corpus, Publishable):
        raise UserError(
            "corpus.share publishes text files and token shards of this machine, and this data is neither: set"
            " data=text, data=tokens or data=stdlib, or leave corpus.share out"
        )
    for note in notes_of(corpus):
        on_status(f"note: {note}")
    on_status(f"corpus {config.corpus.share}: computing its hash")
    folder = publish(corpus, name=config.corpus.share, folder=config.corpus.folder, on_status=on_status)
    config.data = OmegaConf.load(config_dir() / "data" / "shared.yaml")
    config.data.sha256, config.data.tokenizer = folder.path.name, data.get("tokenizer")
    config.corpus.share = None
    size_mb = folder.index.size_bytes / 1e6
    on_status(f"corpus {folder.index.name}: {size_mb:,.1f} MB in {folder.path}, for all machines of the run")
