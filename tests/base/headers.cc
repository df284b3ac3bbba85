// Compiled once for the tests' precompiled headers; no test.
int main() { return 0; }
