// Package mistakes has bugs to plant: ten for each backend, as patches of its sources, each with the rules of the conformance
// suite that must find it. README.md lists them.
//
// Its tests hold the patches to the sources, which they must fit. `make mistakes` plants one after the other and requires
// that every rule which a patch names fails; it takes minutes, and the servers.
package mistakes
