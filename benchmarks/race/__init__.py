"""Every head, the methods of Chen et al. 2019 and today's libraries on the same softmaxes."""
