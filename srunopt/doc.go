// Package srunopt is srun's grammar of options: it reads and prints what stands
// behind --cpu-bind, --mem-bind, --distribution, --gres, --mem, --time, --signal,
// --acctg-freq and in file name patterns, and Validate checks a whole request.
//
// The types that travel in a request are package step's. Begin with Validate and
// ParseCPUBind.
package srunopt
