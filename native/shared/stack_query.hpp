// Asking a process where it stands: peers do when it does not come, `allfold doctor` does from outside.
#pragma once

#include <string>

#include "shared/directory.hpp"
#include "shared/wait.hpp"

namespace allfold {

// What the process says, or nothing if it does not answer in time: it is stopped, or holds its interpreter's lock, or
// has nobody to answer.
std::string ask(Directory& directory, Clock::duration at_most);

// For the process itself: the number of the next question after `seen`, or 0 when there will be none.
uint64_t await_question(Directory& directory, uint64_t seen);
void give_answer(Directory& directory, uint64_t question, const std::string& text);
void end_questions(Directory& directory);

}  // namespace allfold
