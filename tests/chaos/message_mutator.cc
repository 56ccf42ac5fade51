#include "tests/chaos/message_mutator.h"

#include <cstdint>
#include <limits>
#include <string>

#include <google/protobuf/descriptor.h>
#include <google/protobuf/unknown_field_set.h>

namespace baton::e2e {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

size_t Below(size_t bound, std::mt19937_64* random) { return static_cast<size_t>((*random)() % bound); }

template <typename T>
T Odd(std::mt19937_64* random) {
  switch (Below(7, random)) {
    case 0: return 0;
    case 1: return 1;
    case 2: return static_cast<T>(-1);
    case 3: return std::numeric_limits<T>::max();
    case 4: return std::numeric_limits<T>::lowest();
    case 5: return std::numeric_limits<T>::has_quiet_NaN ? std::numeric_limits<T>::quiet_NaN() : static_cast<T>(1 << 20);
    default: return static_cast<T>((*random)() >> Below(64, random));
  }
}

std::string OddText(std::mt19937_64* random) {
  switch (Below(5, random)) {
    case 0: return "";
    case 1: return std::string(size_t{1} << Below(17, random), 'x');
    case 2: return std::string("a\0b\n\t", 5);
    case 3: return "127.0.0.1:1";
    default: return std::to_string((*random)());
  }
}

// Sets a field that is single, or adds an element to one that is repeated.
void SetScalar(Message* m, const FieldDescriptor* f, std::mt19937_64* random) {
  const Reflection* r = m->GetReflection();
  const bool add = f->is_repeated();
  switch (f->cpp_type()) {
#define BATON_ODD(type, name, value)                       \
  case FieldDescriptor::type:                              \
    add ? r->Add##name(m, f, value) : r->Set##name(m, f, value); \
    break
    BATON_ODD(CPPTYPE_INT32, Int32, Odd<int32_t>(random));
    BATON_ODD(CPPTYPE_INT64, Int64, Odd<int64_t>(random));
    BATON_ODD(CPPTYPE_UINT32, UInt32, Odd<uint32_t>(random));
    BATON_ODD(CPPTYPE_UINT64, UInt64, Odd<uint64_t>(random));
    BATON_ODD(CPPTYPE_DOUBLE, Double, Odd<double>(random));
    BATON_ODD(CPPTYPE_FLOAT, Float, Odd<float>(random));
    BATON_ODD(CPPTYPE_BOOL, Bool, Below(2, random) == 0);
    BATON_ODD(CPPTYPE_ENUM, EnumValue, Odd<int32_t>(random));
    BATON_ODD(CPPTYPE_STRING, String, OddText(random));
#undef BATON_ODD
    case FieldDescriptor::CPPTYPE_MESSAGE:
      break;  // not a scalar
  }
}

}  // namespace

void MutateOnce(Message* m, std::mt19937_64* random) {
  const Reflection* r = m->GetReflection();
  const int fields = m->GetDescriptor()->field_count();
  if (fields == 0 || Below(16, random) == 0) {
    r->MutableUnknownFields(m)->AddLengthDelimited(static_cast<int>(1000 + Below(1000, random)), OddText(random));
    return;
  }
  const FieldDescriptor* f = m->GetDescriptor()->field(static_cast<int>(Below(static_cast<size_t>(fields), random)));
  if (Below(8, random) == 0) return r->ClearField(m, f);
  if (f->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
    for (size_t n = f->is_repeated() ? size_t{1} << Below(12, random) : 1; n > 0; --n) SetScalar(m, f, random);
    return;
  }
  if (!f->is_repeated()) return MutateOnce(r->MutableMessage(m, f), random);
  const int size = r->FieldSize(*m, f);
  if (size == 0 || Below(4, random) == 0) {
    Message* added = r->AddMessage(m, f);
    if (size > 0) added->CopyFrom(r->GetRepeatedMessage(*m, f, 0));
    return MutateOnce(added, random);
  }
  MutateOnce(r->MutableRepeatedMessage(m, f, static_cast<int>(Below(static_cast<size_t>(size), random))), random);
}

}  // namespace baton::e2e
