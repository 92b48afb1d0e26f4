// Prints what the functions return for the inputs on the standard input.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	void *lib = dlopen(argv[1], RTLD_NOW);
	uint64_t n, a, b, c;
	char name[16];

	if (argc != 2 || lib == NULL)
		return fprintf(stderr, "%s\n", dlerror()), 1;
	while (scanf("%lu %lu %lu %lu", &n, &a, &b, &c) == 4) {
		snprintf(name, sizeof name, "f%02lu", n);
		uint64_t (*f)(uint64_t, uint64_t, uint64_t) = (uint64_t (*)(uint64_t, uint64_t, uint64_t))dlsym(lib, name);
		if (f == NULL)
			return fprintf(stderr, "%s\n", dlerror()), 1;
		printf("%lu\n", f(a, b, c));
	}
	return 0;
}
