"""A run of a policy of acts: settings, scene, loop, checkpoint."""
