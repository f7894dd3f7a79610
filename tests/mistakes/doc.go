// Package mistakes has bugs to plant: ten for each backend, for package migrate and for the engine,
// as patches of the sources, each with the rules of the conformance suite, or the test, that must
// find it. README.md lists them.
//
// Its tests hold the patches to the sources, which they must fit. `make mistakes` plants one after
// the other and requires that every rule which a patch names fails; it takes minutes, and the
// servers.
package mistakes
