"""From the options as typed to a composed configuration: files and folders of the user, messages, descriptions."""
