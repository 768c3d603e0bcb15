package io.weir.flink;

import org.apache.flink.api.common.TaskInfo;
import org.apache.flink.runtime.execution.Environment;

import java.util.UUID;
import java.util.regex.Pattern;

/**
 * Names the branch that one attempt writes to: {@code job/operator/subtask/attempt}. The attempt is
 * Flink's execution attempt id, which tells the execution graphs of two restores apart, and a
 * number of this opening, for an attempt may open its backend again.
 */
final class BranchNames {

    private static final Pattern SUBTASK_SUFFIX = Pattern.compile("_\\(\\d+/\\d+\\)$");
    private static final Pattern NOT_ALLOWED = Pattern.compile("[^A-Za-z0-9._-]");
    private static final int MAX_OPERATOR_LENGTH = 160;

    private BranchNames() {}

    static String next(Environment environment, String operatorIdentifier) {
        TaskInfo task = environment.getTaskInfo();
        return String.join(
                "/",
                environment.getJobID().toHexString(),
                operator(operatorIdentifier),
                task.getIndexOfThisSubtask() + "-of-" + task.getNumberOfParallelSubtasks(),
                NOT_ALLOWED.matcher(environment.getExecutionId().toString()).replaceAll("_")
                        + "-"
                        + UUID.randomUUID().toString().substring(0, 8));
    }

    /**
     * The same for all subtasks; the end is kept where it is too long, since the operator's id
     * stands there.
     */
    static String operator(String identifier) {
        String name =
                NOT_ALLOWED
                        .matcher(SUBTASK_SUFFIX.matcher(identifier).replaceAll(""))
                        .replaceAll("_");
        if (name.isEmpty()) {
            return "_";
        }
        String cut =
                name.length() > MAX_OPERATOR_LENGTH
                        ? name.substring(name.length() - MAX_OPERATOR_LENGTH)
                        : name;
        return cut.matches("\\.+") ? cut.replace('.', '_') : cut;
    }
}
