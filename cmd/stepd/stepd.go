// Command stepd owns one job step on one node. noded starts it.
package main

import "stepd/stepd"

func main() { stepd.Main() }
