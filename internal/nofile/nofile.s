// Without an assembly file the compiler wants a body for rawSyscall6.
