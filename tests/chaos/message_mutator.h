// Messages that are well-formed and wrong: fields with values that they may not have, fields that are missing, come twice or are
// not known. The same ones in every run of a seed.
#ifndef BATON_TESTS_CHAOS_MESSAGE_MUTATOR_H_
#define BATON_TESTS_CHAOS_MESSAGE_MUTATOR_H_

#include <random>

#include <google/protobuf/message.h>

namespace baton::e2e {

// Changes one field of `message`, or of a message in it.
void MutateOnce(google::protobuf::Message* message, std::mt19937_64* random);

}  // namespace baton::e2e

#endif  // BATON_TESTS_CHAOS_MESSAGE_MUTATOR_H_
