package io.weir.flink.errors;

/** A serializer gives different bytes for equal keys, so that a key's state would not be found. */
public class NonDeterministicSerializerException extends WeirException {

    private static final long serialVersionUID = 1L;

    /**
     * @param key what was serialized
     * @param serializer the serializer
     */
    public NonDeterministicSerializerException(Object key, Object serializer) {
        super(
                String.format(
                        "Serializer %s gives different bytes for equal values of %s: keys, user"
                            + " keys of maps and namespaces are found by their bytes, so their"
                            + " serializer has to be deterministic. Use a type without hash maps or"
                            + " hash sets in it, such as a sorted one, or a serializer that writes"
                            + " them in an order of their own.",
                        serializer.getClass().getName(), key.getClass().getName()));
    }
}
