// Holds the precompiled headers of the tests: no test, and nothing runs it.
int main() { return 0; }
