// Which of the faults of mutations.txt is switched on. Mutated copies of the product's sources ask; the product does not
// know of it.
#ifndef BATON_TESTS_SIM_MUTATION_H_
#define BATON_TESTS_SIM_MUTATION_H_

#include <string>

namespace baton::sim {

inline std::string active_mutation;

}  // namespace baton::sim

#define MUTATED(name) (::baton::sim::active_mutation == (name))

#endif  // BATON_TESTS_SIM_MUTATION_H_
