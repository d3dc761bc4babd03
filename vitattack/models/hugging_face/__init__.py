"""Models in the layouts of the Hugging Face hub: folders of save_pretrained, and repositories of such files."""
